#include "job/next_step.h"

#include <nlohmann/json.hpp>
#include <system_error>

#include "base/json.h"
#include "format/torch_archive.h"

namespace dsckpt {
namespace fs = std::filesystem;

Program program_of(const Checkpoint& checkpoint) {
  const fs::path& folder = checkpoint.folder().named;
  const auto has = [&](const char* name) {
    std::error_code failed;
    return fs::exists(folder / name, failed);
  };
  if (has("trainer_state.json")) return Program::trainer;
  if (has("random_states_0.pkl")) return Program::accelerate;
  for (const CheckpointFile& file : checkpoint.files().model) {
    const pickle::Value& root = file.archive->root();
    const bool has_version = root.is_mapping() && root.find("pytorch-lightning_version");
    return has_version ? Program::lightning : Program::deepspeed;
  }
  return Program::deepspeed;
}

std::string going_on(Program program, const fs::path& output) {
  const std::string folder = python_text(output.string());
  switch (program) {
    case Program::trainer:
      return "trainer.train(resume_from_checkpoint=" + folder + ")";
    case Program::accelerate:
      return "accelerator.load_state(" + folder + ")";
    case Program::lightning:
      return "trainer.fit(model, ckpt_path=" + folder + ")";
    case Program::deepspeed:
      break;
  }
  return "engine.load_checkpoint(" + folder + ")";
}

std::string python_text(std::string_view text) {
  return dump(nlohmann::json(text));
}

}  // namespace dsckpt
