"""Where the followers of a chunk stand, piece by piece: what all of them have passed is not needed
in memory any more. Pure."""


class Trail:
    """Counts followers by the piece they read next. All steps take constant time on the whole,
    however many follow."""

    def __init__(self, pieces: int, followers: int) -> None:
        self._at = [followers] + [0] * pieces
        self.passed = 0

    def enter(self) -> None:
        """One more begins; what has been passed before is not brought back."""
        self._at[0] += 1
        self.passed = 0

    def move(self, piece: int, onto: int) -> bool:
        """One goes from a piece to a later one; whether `passed` has grown."""
        self._at[piece] -= 1
        self._at[onto] += 1
        return self._advance()

    def leave(self, piece: int) -> bool:
        """One that stood at `piece` is gone; whether `passed` has grown."""
        self._at[piece] -= 1
        return self._advance()

    def _advance(self) -> bool:
        before = self.passed
        while self.passed < len(self._at) - 1 and not self._at[self.passed]:
            self.passed += 1
        return self.passed > before
