// The style sheet of an HtmlReport.
#pragma once

#include <string_view>

namespace dsckpt {

// CSS, without the element around it.
std::string_view html_style();

}  // namespace dsckpt
