"""The problem as a mixed-integer linear program, solved by HiGHS."""
