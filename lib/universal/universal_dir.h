// Universal checkpoints: a folder for each parameter, and in it a file for each of its states.
//
//   zero/NAME/fp32.pt, exp_avg.pt ...  {'param': tensor, ...}, or at stage 3 the bare elements
//   zero/NAME/step.pt                  how often it was stepped: a number or a tensor
//   zero/optimizer_state.pt            what is not of one parameter
//
// Source: deepspeed/checkpoint/ds_to_universal.py (merge_tp_slices, merge_zero3_slices,
// _save_optimizer_state).
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"
#include "deepspeed/universal_form.h"
#include "format/torch_archive.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// One state of one parameter.
struct UniversalState {
  std::string param;
  std::string key;  // "fp32", "exp_avg"
  TensorSource value;
  bool requires_grad = false;

  std::string path() const { return "zero/" + param + "/" + key + ".pt"; }
};

// Writes a state as a dict with the keys of `form`. Rows beyond form.vocab_rows are left out.
void lay_out_universal_state(PlanBuilder& plan, const UniversalState& state,
                             const UniversalForm& form);
// Writes a state as a vector without a shape.
void lay_out_flat_universal_state(PlanBuilder& plan, const UniversalState& state);
// Writes a step count, in the form that it has in `archive`.
void lay_out_universal_step(PlanBuilder& plan, const std::string& param,
                            const TorchArchive& archive, const pickle::Value& step);

// --- the files that belong to no single parameter: parts of the checkpoint's own pickles, copied
// and changed on the way. Contents and reasons: checkpoint/LAYOUTS.md, "Universal checkpoints".

// zero/optimizer_state.pt: the global part of the optimizer that DeepSpeed's loader reads. Source:
// ds_to_universal.py _save_optimizer_state, _save_optimizer_state_stage3. Throws UnsupportedError
// if there is no optimizer.
void lay_out_optimizer_state(PlanBuilder& plan, const Checkpoint& checkpoint);

// The model-states file `file`, copied byte for byte with two exceptions. At stage 0 the optimizer
// is removed from it. With AutoEP its metadata goes to the place where the loader reads it.
void lay_out_model_states(PlanBuilder& plan, const InputFiles& inputs, const Checkpoint& checkpoint,
                          const CheckpointFile& file);

}  // namespace dsckpt
