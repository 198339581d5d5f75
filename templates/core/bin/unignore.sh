#!/bin/sh
# unignore.sh COMMAND…: gives TERM, USR1, USR2, INT and HUP their default action again, then becomes the command.
# A shell cannot restore a signal that was ignored when it started. env(1) of coreutils 8.31 and Python can.
if env --default-signal=TERM true 2>/dev/null; then
    exec env --default-signal=TERM,USR1,USR2,INT,HUP "$@"
fi
exec python3 -c '
import os, signal, sys
for name in ("TERM", "USR1", "USR2", "INT", "HUP"):
    signal.signal(getattr(signal, "SIG" + name), signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
' "$@"
