// HtmlReport: a checkpoint as one page for a browser.
//
// The page holds everything it shows: no script, no font, no image and no style from anywhere else,
// and a policy in its head that forbids the browser to fetch or run anything. It is light or dark
// as the reader's system is, fits narrow windows, and its size is bounded: what would be too many
// rows or too small to see is put together, and said to be. The same report gives the same bytes.
#pragma once

#include <string>

#include "report/html/html_report.h"

namespace dsckpt {

// A whole HTML document in UTF-8.
std::string html_of(const HtmlReport& report);

}  // namespace dsckpt
