"""Random operations while processes of Waypoint are killed: acknowledged results are kept, and all records agree."""
