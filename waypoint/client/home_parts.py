"""The calls of a home that have a subject of their own: each subject's module is loaded when it is asked for."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.client.calls.attached_calls import LayerCalls
    from waypoint.client.calls.disk_calls import DiskCalls
    from waypoint.client.calls.history import History
    from waypoint.client.calls.image_calls import ImageCalls
    from waypoint.client.calls.job_calls import JobCalls
    from waypoint.client.calls.profile_calls import ProfileCalls
    from waypoint.client.comparing.diffing import ChangeCalls
    from waypoint.client.files.file_calls import FileCalls


class HomeParts:
    """Use Client."""

    def __init__(self, home: str) -> None:
        """`home`: its real path."""
        self.home = home

    @property
    def jobs(self) -> "JobCalls":
        """Work that the daemon does without a client that waits for it."""
        from waypoint.client.calls.job_calls import JobCalls

        return JobCalls(self.home)

    @property
    def profiles(self) -> "ProfileCalls":
        """What Waypoint knows of programs."""
        from waypoint.client.calls.profile_calls import ProfileCalls

        return ProfileCalls(self.home)

    @property
    def disk(self) -> "DiskCalls":
        """What holds how much of the disk, what is given back, whether the store is whole."""
        from waypoint.client.calls.disk_calls import DiskCalls

        return DiskCalls(self.home)

    @property
    def layers(self) -> "LayerCalls":
        """What is attached to captures."""
        from waypoint.client.calls.attached_calls import LayerCalls

        return LayerCalls(self.home)

    @property
    def images(self) -> "ImageCalls":
        """Captures as files, which another home takes in."""
        from waypoint.client.calls.image_calls import ImageCalls

        return ImageCalls(self.home)

    @property
    def files(self) -> "FileCalls":
        """The files of captures and live sessions, read and copied."""
        from waypoint.client.files.file_calls import FileCalls

        return FileCalls(self.home)

    @property
    def changes(self) -> "ChangeCalls":
        """What sessions have changed of the machine, and what captures differ in."""
        from waypoint.client.comparing.diffing import ChangeCalls

        return ChangeCalls(self.home)

    @property
    def history(self) -> "History":
        """Captures, branches, and the log of what moved them."""
        from waypoint.client.calls.history import History

        return History(self.home)
