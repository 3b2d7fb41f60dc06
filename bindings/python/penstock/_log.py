"""What systems log, as records of the logger "penstock" of package logging.

The library calls no Python: it keeps records, and a thread of Python takes them. The thread starts with the first system and ends with the last.
"""
from __future__ import annotations

import atexit
import ctypes
import json
import logging
import os
import threading
import traceback
from typing import Any, Dict, Optional

from . import _lib

_logger = logging.getLogger("penstock")
_mu = threading.Lock()        # guards the next two
_thread: Optional[threading.Thread] = None
_opened = 0                   # systems, so far
_delivery = threading.Lock()  # one thread at a time takes records: they stay in order
_over = False                 # Python ends: the thread delivers nothing any more
_names = ((5, "trace"), (10, "debug"), (20, "info"), (30, "warn"), (40, "error"))


def level() -> str:
    """The level of a system that has no configuration: the one that the logger has now."""
    if not _logger.isEnabledFor(logging.CRITICAL):
        return "off"
    have = _logger.getEffectiveLevel()
    return next((name for at, name in _names if have <= at), "critical")


def keep() -> None:
    """Has systems that are opened from now on keep what they log."""
    _lib.call("penstock_log", None, 0, 0)


def start() -> None:
    """Sees to it that the thread runs as long as a system is open."""
    global _thread, _opened
    with _mu:
        _opened += 1
        if _thread is None:
            t = threading.Thread(target=_run, name="penstock-log", daemon=True)
            try:
                t.start()
            except RuntimeError:  # Python ends, or has no thread to give: records wait for the next system, or the end
                return
            _thread = t


def _run() -> None:
    global _thread
    while True:
        with _mu:
            opened = _opened
        try:
            while _lib.call("penstock_log", None, 0, -1) > 0:  # waits, and takes nothing
                with _delivery:
                    if _over:
                        return
                    _take()
        except _lib.PeerLostError:  # the agent has ended, and its systems with it
            pass
        with _mu:
            if opened == _opened:  # no system is open
                _thread = None
                return


def _take() -> None:
    """Delivers what there is."""
    n = 4096
    while True:
        b = ctypes.create_string_buffer(n)
        k = _lib.call("penstock_log", b, n, 0)
        if k == 0:
            return
        if k >= n:
            n = k + 1
            continue
        try:
            _deliver(json.loads(b.value.decode("utf-8", "replace")))
        except Exception:  # of a filter or a handler of the program
            if logging.raiseExceptions:
                traceback.print_exc()


def _deliver(r: Dict[str, Any]) -> None:
    number = max(logging.INFO + r["level"] * 10 // 4, 5)
    if not _logger.isEnabledFor(number):
        return
    attributes = r.get("attributes", {})
    message = " ".join([r["msg"] if r["msg"].isprintable() else json.dumps(r["msg"])] + [f"{k}={_text(v)}" for k, v in attributes.items()])
    out = _logger.makeRecord("penstock", number, "(penstock)", 0, message, (), None, None, {"penstock": attributes})
    begun = out.created - out.relativeCreated / 1000
    out.created, out.msecs = r["time"] / 1e9, float(r["time"] // 1_000_000 % 1000)
    out.relativeCreated = (out.created - begun) * 1000
    _logger.handle(out)


def _text(v: Any) -> str:
    """A value as it may stand in a line: peers have chosen some of them."""
    if isinstance(v, str) and v and v.isprintable() and not any(c in ' ="' for c in v):
        return v
    return json.dumps(v, ensure_ascii=not (isinstance(v, str) and v.isprintable()))


def _end() -> None:
    global _over
    with _delivery:
        _over = True
        try:
            if _lib._library is not None:
                _take()
        except _lib.Error:  # in a fork
            pass


def _forked() -> None:
    global _mu, _delivery, _thread
    _mu, _delivery, _thread = threading.Lock(), threading.Lock(), None


atexit.register(_end)
os.register_at_fork(after_in_child=_forked)
