"""Prints the list of functions that differential_interpreter can call, as a file to include: usage list_calls.py
OUTPUT."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "protocol" / "codegen"))
import model  # noqa: E402

api = model.read_api(ROOT / "protocol" / "api")
names = [f.name for f in api.functions if not f.unsupported and not f.is_old_abi]
Path(sys.argv[1]).write_text("".join(f"GPUWIRE_CALL({name})\n" for name in sorted(names)))
