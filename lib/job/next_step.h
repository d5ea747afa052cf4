// The user's next step: the line that continues from an output, in the program that saved the
// input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace dsckpt {

// The program whose training loop saved a checkpoint.
enum class Program : uint8_t { deepspeed, trainer, accelerate, lightning };

// Decides by the files beside the shards (Trainer's trainer_state.json, Accelerate's
// random_states_0.pkl) and by Lightning's additions to a model-states file. It is DeepSpeed itself
// if there is none of that.
Program program_of(const Checkpoint& checkpoint);

// The Python that loads the native or universal checkpoint in the folder `output`:
// trainer.train(resume_from_checkpoint="out"), engine.load_checkpoint("out"), ...
std::string going_on(Program program, const std::filesystem::path& output);

// As Python writes it: "a\"b".
std::string python_text(std::string_view text);

}  // namespace dsckpt
