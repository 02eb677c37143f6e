"""What comes from outside, and has no type before it is looked at."""

from __future__ import annotations

from typing import Any, TypeAlias

# What json.loads gives and json.dumps takes. Who reads it knows what stands where; what others may
# have written is checked.
Json: TypeAlias = Any

# What a user may give as X, y or sample_weight: an array, a list or a tensor, a data frame, an
# Arrow table or dataset, a torch dataset, a path or the name of a column. It is asked for what it
# can do, and is a tensor or a Table once it was opened.
DataLike: TypeAlias = Any
