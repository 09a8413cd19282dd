"""All workloads of the matrix. A new one is a row in one of these modules."""

from tests.workloads import at_terminals, in_kernels, servers, tools, watchers

WORKLOADS = (*at_terminals.ROWS, *servers.ROWS, *watchers.ROWS, *tools.ROWS, *in_kernels.ROWS)
