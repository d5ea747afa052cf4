// Checkpoints with values from elsewhere: one operation, give_weights(), for all of them.
//
// Each function gives its base other values. Everything that these do not replace comes from the
// base: the order and the types of parameters, ties, groups, counters, facts and files
// (Checkpoint::run). A tied parameter may have any of its names in the values. A buffer that they
// lack keeps its value, with a note. A vocabulary's padding stays. All throw InconsistentError for
// names that become equal, and for names, shapes and types that are not those of the base.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hub_weights.h"
#include "checkpoint/layout.h"
#include "checkpoint/weights.h"

namespace dsckpt {

// Files of weights as a checkpoint before its first step (CheckpointFacts::from_weights()), without
// a base. It has the tensors of the files, in the stored types. Floating tensors count as trained,
// the others as buffers, and there are no groups and no model files. Throws as Weights::open.
Checkpoint weights_alone(InputFiles& inputs, const std::filesystem::path& path,
                         const WeightNames& names = {});

// `base`, open with optimizer states, as it would be before the first step of a run that starts
// from files of weights. There are no states. Throws as Weights::open, and UnsupportedError for a
// `base` that was stripped.
Checkpoint started_from_weights(std::shared_ptr<const Checkpoint> base,
                                const std::filesystem::path& path, const WeightNames& names);

// `base` with the values of files of weights, and with its own states and steps. Throws as
// Weights::open, and UnsupportedError for a `base` that was stripped or has no masters.
Checkpoint with_weights(std::shared_ptr<const Checkpoint> base, const std::filesystem::path& path,
                        const WeightNames& names);

// `base` with the weights, states and steps of `values`, and with the hyper-parameters that both
// know. The checkpoint `values` is of another framework, with names instead of an order. The tag is
// that of the steps. Both are open with optimizer states. Throws as with_weights(). Throws
// InconsistentError for a parameter whose states are missing or differ, and for groups with
// different steps.
Checkpoint with_values(std::shared_ptr<const Checkpoint> base,
                       std::shared_ptr<const Checkpoint> values);

// The kinds of entries, by name.
using ParamKinds = KeyedMap<std::string, ParamKind>;

// `values` as a universal checkpoint of a DeepSpeed run that is only known by its configuration.
// The checkpoint `values` is of another framework, open with optimizer states. The result has one
// model-states file, put together here. This file has meta tensors (meta_tensor.h) in `module`, as
// many steps as were made, and the schedules that are there. Groups, their order and their
// hyper-parameters are those of `values`; masters and states are float32. Throws UnsupportedError
// for parameters without names, and for trained ones that float32 cannot hold. The map `kinds` says
// which untrained entries are frozen parameters and which are buffers; files of other frameworks do
// not say it.
Checkpoint for_deepspeed(std::shared_ptr<const Checkpoint> values, const ParamKinds& kinds = {});

// The newest of one or more checkpoints of the same inputs, the oldest first, with their weighted
// mean (TensorSource::weighted_mean). Parameters, frozen ones too, are averaged: masters where
// there are any. Buffers and tensors of other than floating types are the newest's. There are
// neither states nor groups, and no padding. Numbers of ranks and stages may differ. Throws
// InconsistentError also for ties that do not fit, and if only some have masters. Throws
// UnsupportedError for floating types other than float32, bfloat16 and float16.
Checkpoint average(std::vector<AveragedCheckpoint> parts);

// Values for the parameters of a checkpoint, by the engine's names.
struct GivenWeights {
  std::span<const WeightsTensor> tensors;
  std::string where;        // what they lie in, for messages
  bool of_a_start = false;  // no step was taken: without the states of the checkpoint
};

// Fills in the parameters of `base` with these values, and notes on them.
void give_weights(CheckpointDraft& draft, const Checkpoint& base, const GivenWeights& given);

// Throws UnsupportedError for a checkpoint whose training does not go on: with_weights().
void refuse_values_into(const Checkpoint& base);

// --- on the ranks that a model is split over

// Gives `params`, those of tensor-parallel rank `tp_rank` in its files, the values of `whole`: a
// checkpoint of the same model with other values (CheckpointFacts::values). The rules that join the
// slices of a parameter cut it (Param::cut). A mean is the same on every rank. The states and steps
// change if they are not those of the run. Throws UnsupportedError for a parameter whose cut no
// simple rule tells, and for a sum.
void give_values(std::vector<Param>& params, const Checkpoint& whole, uint32_t tp_rank);

// The facts of a world that has the values of a checkpoint with the facts `whole`.
void tell_values(CheckpointFacts& world, const CheckpointFacts& whole);

}  // namespace dsckpt
