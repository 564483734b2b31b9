"""
The status page: one HTML document about this node, without script and without anything loaded from
elsewhere.

`answers` asks the daemon, `build` makes of its answers what `model` describes, `template` renders
that, and `server` serves it. `vitald page` and `vitald report --html` use the same template.
"""
