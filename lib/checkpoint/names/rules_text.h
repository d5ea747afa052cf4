// rules.jsonl, which is built in.
#pragma once

#include <string_view>

namespace dsckpt {

std::string_view hub_rules_text();

}  // namespace dsckpt
