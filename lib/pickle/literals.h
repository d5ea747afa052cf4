// Decodes the texts in STRING and UNICODE lines of pickles. For the pickle sources only.
#pragma once

#include <string>
#include <string_view>

namespace dsckpt::pickle {

// The text of a STRING line: a Python 2 str literal in quotes. Throws CorruptError.
std::string unquote(std::string_view line);
// The text of a UNICODE line, as UTF-8: "raw-unicode-escape", which is Latin-1 with \uXXXX and
// \UXXXXXXXX. Throws CorruptError.
std::string decode_raw_unicode(std::string_view line);

}  // namespace dsckpt::pickle
