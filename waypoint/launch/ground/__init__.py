"""The ground of a session: the host's mounts as its base, the skeleton on top of them, the home's folders and cgroups,
and the plan that puts them together.
"""
