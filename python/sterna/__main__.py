"""The command line: `sterna`, and `python -m sterna`."""

import os
import signal
import sys

from . import _sterna


def main() -> int:
    """Runs the command line with this process's arguments."""
    # Like the program: what is ignored at the start stays ignored, as under nohup.
    if hasattr(signal, "pthread_sigmask"):
        ends = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
        ignored = [number for number in ends if signal.getsignal(number) == signal.SIG_IGN]
        signal.pthread_sigmask(signal.SIG_BLOCK, ignored)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
    # Python would only set a flag, which nothing here checks.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Like the program: without a desktop, a Vulkan layer prints warnings.
    if sys.platform == "linux" and "XDG_RUNTIME_DIR" not in os.environ:
        os.environ["NODEVICE_SELECT"] = "1"
    return _sterna.main(["sterna", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
