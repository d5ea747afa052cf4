// A checkpoint of ZeRO stage 1, small enough for a listing. Tests change it in one place and run
// verify().
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "inspect/verify/verify.h"
#include "support/hand_made.h"

namespace dsckpt::test {

// DeepSpeed's files for two parameters, weight [8] and bias [4], after 5 steps, 1 of them skipped.
// The masters of the ranks, one after the other, are `first`, `first` + 1, ...; the module has them
// in `dtype`. `ranks` divides 12. Nothing is wrong with it until a test changes it.
class ZeroCheckpoint {
 public:
  explicit ZeroCheckpoint(int64_t ranks = 2, int64_t first = 10,
                          const std::string& dtype = "bfloat16");

  // The same at stage 3: each rank has a model's file, and its pieces of the parameters in two
  // sub-groups. `ranks` divides 4.
  void make_stage_3(int64_t ranks = 2, int64_t first = 10);

  static std::string optim_name(int64_t rank);
  // For stage 3.
  static std::string model_name(int64_t rank);
  static inline const std::string kModelName = "mp_rank_00_model_states.pt";
  // Its name in findings.
  static std::string display(const std::string& name) { return "global_step5/" + name; }

  // The files, by name, as HandMade::write takes them.
  std::map<std::string, nlohmann::ordered_json> files;
  // Files of these bytes.
  std::map<std::string, std::string> raw;
  nlohmann::ordered_json& model() { return files.at(kModelName); }
  nlohmann::ordered_json& model(int64_t rank) { return files.at(model_name(rank)); }
  // The output of DeepSpeed's optimizer wrapper: optimizer_state_dict of the rank's file.
  nlohmann::ordered_json& optim(int64_t rank) {
    return files.at(optim_name(rank)).at("optimizer_state_dict");
  }
  // The state of a rank's optimizer for its first group.
  nlohmann::ordered_json& states(int64_t rank) {
    return optim(rank)["base_optimizer_state"]["state"]["0"];
  }

  std::filesystem::path folder() const { return made_.folder() / "global_step5"; }
  // Writes the files; those that were written before go.
  void write();
  // The written files.
  VerifyReport verify_written(const VerifyOptions& options = {}) const;
  VerifyReport verify(const VerifyOptions& options = {});
  // Each finding as "CHECK FILE [MEMBER] TENSOR: MESSAGE", without what is empty; the folder is cut
  // off the file.
  std::vector<std::string> findings();

 private:
  HandMade made_;
};

// A tensor of n, n + 1, ... as HandMade::write takes it.
nlohmann::ordered_json numbers(std::vector<int64_t> shape, int64_t first,
                               const std::string& dtype = "float32");
std::vector<std::string> texts_of(const VerifyReport& report);

}  // namespace dsckpt::test
