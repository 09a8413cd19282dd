"""Thin wrappers of kernel interfaces. Each is named after its call and raises OSError with the call and the path.

This is the only room with ctypes, ioctl, /proc, mounts, namespaces and cgroups. Out of scope: any policy.
"""
