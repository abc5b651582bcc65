"""Which faults there are, and which jobs they meet."""

from faults import damage, kinds
from faults.jobs import NAMES
from faults.kinds import Fault

FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "kill -9": (kinds.killed, NAMES),
    "SIGTERM": (kinds.terminated, NAMES),
    "Ctrl-C": (kinds.interrupted, NAMES),
    "full disk": (kinds.full_disk, NAMES),
    "limit on files": (kinds.file_limit, NAMES),
    "read-only disk": (kinds.read_only, NAMES),
    "no permission": (kinds.no_permission, NAMES),
    "two processes": (kinds.two_processes, NAMES),
    "damaged tensors": (damage.damaged_tensors, NAMES),
    "damaged rows": (damage.damaged_rows, NAMES),
    "damaged certificate": (damage.damaged_certificate, ("certification",)),
    "out of memory": (damage.starved, NAMES),
    "out of memory in a step": (damage.starved_step, ("training",)),
}
