"""Images and videos on the host: from what a request holds to the arrays that a vision tower reads.

Everything here is numpy; Pillow and PyAV open the files, and load when the first one comes. A request's media go one
way: ``images`` and ``video`` open an item and check it against its limits before a pixel is decoded, ``qwen_patches``
sizes, resizes and cuts it into patches as the reference processor does, and ``positions`` numbers the tokens that stand
for it. An item that cannot be read is an ``InputError`` of kind ``media`` whose message and field name it:
``images[2]: ...``.
"""
