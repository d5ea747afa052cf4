// Another set of parameters: some become trained or frozen, some come or go, and the vocabulary has
// other rows. One pass over the parameters makes all five changes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/hub_weights.h"
#include "dsckpt/checkpoint.h"

namespace dsckpt {

// `base` with another set of parameters. Some become trained or frozen, some come or go, and the
// vocabulary gets other rows, as `change` says. Names in files of weights become others by `names`.
// New parameters have the order of `order`, the names of the new model; without it they come last
// in their modules. Groups are found by the parameters they have, or are those of `like`, a
// checkpoint of the new run; nullptr: none. Everything else comes from `base`, its files too:
// Checkpoint::changed_from(). Notes say what each change costs. Throws UsageError for a pattern
// that changes nothing, for two changes of one parameter, and for one of several tied names alone.
// Throws it also for a new name that is there, and for a parameter that fits several groups or
// none. Throws UnsupportedError for a `base` without files of DeepSpeed. If it is split over ranks,
// so is the result, which borrows `like`. It throws then also for new parameters, other rows, and
// changes of experts.
Checkpoint changed_set(std::shared_ptr<const Checkpoint> base, const SetChange& change,
                       const WeightNames& names, const std::vector<std::string>& order,
                       const Checkpoint* like);

}  // namespace dsckpt
