#include "checkpoint/made_run.h"

#include <string_view>
#include <utility>

#include "deepspeed/keys.h"
#include "deepspeed/release.h"

namespace dsckpt {

using pickle::Document;
using pickle::Value;

Value buffer_names(Document& document, const std::vector<Param>& params) {
  std::vector<Value> names;
  for (const Param& param : params) {
    if (param.kind == ParamKind::buffer) names.push_back(document.intern(param.name));
  }
  return document.list(std::move(names));
}

void set_counters(Document& document, Value dict, int64_t global_steps) {
  const auto set = [&](std::string_view key, Value value) {
    document.set_item(dict, document.intern(key), value);
  };
  for (const std::string_view key : {keys::kDataSampler, keys::kRandomLtd}) set(key, {});
  set(keys::kSkippedSteps, Document::integer(0));
  set(keys::kGlobalSteps, Document::integer(global_steps));
  set(keys::kGlobalSamples, Document::integer(0));
  for (const std::string_view key : {keys::kDpWorldSize, keys::kMpWorldSize}) {
    set(key, Document::integer(1));
  }
  set(keys::kDsConfig, {});
  set(keys::kDsVersion, document.string(kNewestKnown));
}

}  // namespace dsckpt
