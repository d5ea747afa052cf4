// HtmlReport: a checkpoint as one page for a browser.
//
// The page holds everything it shows: no script, font, image or style from anywhere else. A policy
// in its head forbids the browser to fetch or run anything. It is light or dark as the reader's
// system, and fits narrow windows. Its size is bounded: rows beyond a limit, and parts too small to
// see, are combined, and the page says so. Equal reports give equal bytes.
#pragma once

#include <string>

#include "report/html/html_report.h"

namespace dsckpt {

// A whole HTML document in UTF-8.
std::string html_of(const HtmlReport& report);

}  // namespace dsckpt
