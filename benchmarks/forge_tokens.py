"""Mutate a token a million times, and count how many of the mutants open. None may.

python benchmarks/forge_tokens.py [COUNT]
"""

import importlib.util
import sys
import time
from pathlib import Path

SUITE = Path(__file__).resolve().parent.parent / "tests" / "test_token_seal.py"


def main(count: int) -> int:
    """Play the mutations of the test suite, as many as asked for."""
    spec = importlib.util.spec_from_file_location("seal_suite", SUITE)
    assert spec is not None
    assert spec.loader is not None
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    token = suite.SEAL.mint(suite.terms()).token
    began = time.perf_counter()
    opened = sum(not suite.forged(mutant) for mutant in suite.mutated_tokens(token, count, seed=1))
    print(f"{count} mutants, {opened} opened, in {time.perf_counter() - began:.0f} s")
    return 1 if opened else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
