"""Thin functions over the kernel, named after the call they make, raising OSError with the call and the path.

The only room with ctypes, ioctl, /proc, mounts, namespaces and cgroups. Universal wrappers; policy lives elsewhere.
"""
