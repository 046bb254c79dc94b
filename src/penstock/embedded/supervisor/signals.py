"""What PostgreSQL's main process understands by a signal."""

import signal

STOP_FAST = signal.SIGINT
STOP_IMMEDIATELY = signal.SIGQUIT
QUIT_AT_ONCE = signal.SIGKILL

STOP = {"fast": STOP_FAST, "immediate": STOP_IMMEDIATELY}
