"""Messages that a chat template renders, and which of the tokens are the assistant's. Begin with `chat`, which uses all the others.

Rows are read by `messages` (the forms that people have), `tools` (definitions of tools) and `pictures` (which are refused). For a
template, `message_reader` writes messages as it takes them. Where the assistant's text is in a rendering is found by `marks` around it;
`frames` keep what a template writes around messages, so that it need not render each conversation, if `verbatim` has proved that it
writes what messages say as it is. `unwritten` tells what a template leaves out.
"""
