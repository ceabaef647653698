# Doxygen's input filter for headers: turns this code base's plain // comments into doc comments.
#   awk -f docs/tools/doxygen_comments.awk core/tensor.h
# The comment that opens a file describes the file; a comment above a declaration describes the declaration, and one at
# the end of a line what the line declares. Indented lines of a comment are code or a drawing.

# Escapes what Doxygen would take for a command, a tag or a link, except within backticks.
function plain(text,    parts, n, i, out) {
  n = split(text, parts, "`")
  for (i = 1; i <= n; i++) {
    if (i % 2 || i == n) gsub(/[\\@<>#%&]/, "\\\\&", parts[i])
    out = out (i > 1 ? "`" : "") parts[i]
  }
  return out
}

function close_code() { if (code) print mark " @endcode"; code = 0 }

# Prints the text of a comment line, with `mark` in front.
function say(text) {
  if (text ~ /^   / || (code && text ~ /^ *$/)) {
    if (!code) print mark " @code{.unparsed}"
    code = 1
    print mark substr(text, 3)
  } else {
    close_code()
    text = plain(text)
    sub(/^ *\./, " \\.", text)  # a full stop at the beginning would end a list
    print mark text
  }
}

BEGIN { mark = "///"; opening = 1 }

/^[ \t]*\/\// {
  text = $0; sub(/^[ \t]*\/\/+/, "", text)
  if (text ~ /^ ?[-=]{3,}/ || text ~ /^ *(clang-format|NOLINT)/) { close_code(); commented = 0; print ""; next }
  if (!commented && opening) print mark " @file"
  commented = 1
  say(text)
  next
}

{
  if (commented) { close_code(); if (opening || $0 ~ /^[ \t]*$/) print "" }
  commented = 0
  if ($0 !~ /^[ \t]*$/) opening = 0
  # A comment at the end of a line: not in strings, of closing braces, or of preprocessor lines.
  if ($0 !~ /^[ \t]*[}#]/ && match($0, /[;,{] +\/\/ /) && substr($0, 1, RSTART) !~ /"[^"]*$/) {
    head = substr($0, 1, RSTART); text = substr($0, RSTART + RLENGTH - 1)
    if (head ~ /{$/) print head
    else print head " ///<" plain(text)
  } else print
}
