// What an optimizer keeps once for a group of parameters, as torch's optimizers have it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "format/torch_archive.h"

namespace dsckpt {

// True if a value is None, numbers, texts and bytes, and containers of these: then reading it runs
// nothing, and it means the same to whoever reads it.
bool is_plain_data(const pickle::Value& value);

// One option of a group: "lr".
struct HyperParameter {
  std::string key;
  TorchArchiveWriter::Written value;
};

// Whether an optimizer with these states is an Adam.
bool is_adam(const std::vector<ParamState>& states);

// Those that the checkpoint has, but for `params`; `betas` as a tuple, a tensor of one number as
// that number. Then, with torch's defaults, what the optimizers of torch 2.13 want besides: of an
// Adam `amsgrad` and `decoupled_weight_decay` too, which is what the configuration says. None if
// the files have none. Gives a note of what is no plain data, and of what torch's optimizer does
// not do as this one did.
std::vector<HyperParameter> hyper_parameters(const Checkpoint& checkpoint, const ParamGroup& group,
                                             bool adam,
                                             const std::function<void(std::string)>& note);

}  // namespace dsckpt
