"""Puts the parts' results together: says what they were measured on and which budgets aren't met; writes one file."""

from __future__ import annotations

import argparse
import json
import sys


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("parts", nargs="*")
    options = parser.parse_args()
    parts = []
    for name in options.parts:
        with open(name, encoding="utf-8") as file:
            parts.append(json.load(file))
    if not parts:
        print("nothing was measured", file=sys.stderr)
        return 1

    machine = parts[0]["machine"]
    print("measured on", ", ".join(f"{key} {value}" for key, value in machine.items() if key != "versions"))
    print("versions", ", ".join(f"{key} {value}" for key, value in machine["versions"].items()))
    budgeted = [row for part in parts for row in part["rows"] if row["at_most"] is not None]
    met = [row for row in budgeted if row["verdict"] == "met"]
    print(f"budgets: {len(met)} of {len(budgeted)} met")
    for row in budgeted:
        if row["verdict"] != "met":
            print(f"  {row['verdict']}: {row['what']} ({row['median']} {row['unit']}, at most {row['at_most']})")
    if options.json:
        results = {part["part"]: part["rows"] for part in parts}
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"schema": 1, "machine": machine, "results": results}, out, indent=1)
            out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
