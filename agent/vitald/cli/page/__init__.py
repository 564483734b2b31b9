"""
The status page: one HTML document about this node, without script and without anything loaded from
elsewhere. `vitald page` serves it; `vitald report --html` writes it to a file.

`answers` queries the daemon, `build` turns its answers into what `model` describes, and `template`
renders that.
"""
