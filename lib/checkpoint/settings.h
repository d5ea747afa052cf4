// The settings of an optimizer's groups, which are put together anew.
#pragma once

#include <optional>

#include "format/torch_archive.h"
#include "pickle/pickle.h"

namespace dsckpt {

// A copy of a setting of `archive`. It may be a number, a text, None, or a tensor of one element,
// copied as a number. It may be tuples and lists of such, as far as optimizers nest them. Returns
// nullopt for anything else.
std::optional<pickle::Value> copy_setting(pickle::Document& document, const TorchArchive& archive,
                                          const pickle::Value& value);

}  // namespace dsckpt
