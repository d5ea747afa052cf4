// The input and the result of a layout's reader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/shard.h"
#include "checkpoint/weights_file.h"
#include "deepspeed/run_config.h"

namespace dsckpt {

struct Worlds;

// A checkpoint in the making: what the files say of the run, named values, and the files. Readers
// open shards through it and fill in params and facts.
struct CheckpointDraft {
  InputFiles& inputs;
  OpenOptions options = {};
  TagFolder folder = {};
  CheckpointFacts facts = {};
  RunConfig run_config = {};  // as open_model_shards() found it
  std::vector<LostFile> lost_files = {};
  std::vector<FileId> lost_ids = {};  // the ids of their stand-ins, likewise
  std::vector<IncompleteParam> incomplete = {};
  uint32_t mp_ranks = 1;                      // worlds that there are, as open_optim_shards found
  std::shared_ptr<const Worlds> worlds = {};  // of a model that is split (zero_world.h)
  std::vector<Param> params = {};
  std::vector<ParamGroup> groups = {};
  ShardValue wrapper_state = {};
  std::vector<std::string> valueless = {};  // Checkpoint::valueless
  std::vector<std::string> notes = {};
  std::vector<Error> doubts = {};  // Checkpoint::doubts
  std::vector<std::string> unused_patterns = {};
  std::vector<std::string> module_order = {};  // Checkpoint::module_order
  // One model-states file and then the others are opened. Both gone when all are read.
  std::optional<Shard> first_model = {};
  std::shared_ptr<SharedPickles> pickles = std::make_shared<SharedPickles>();
  // Opened shards stay: TensorSources and `records` need nothing else of them, but readers borrow.
  std::vector<Shard> model_shards = {};
  std::vector<Shard> optim_shards = {};
  std::vector<Shard> module_shards = {};  // CheckpointFiles::modules
  std::vector<Shard> param_shards = {};   // of universal checkpoints: zero/NAME/*.pt
  CheckpointFiles files = {};             // swap and data; the others are those of the shards
  std::vector<WeightsFile> weights = {};  // Checkpoint::weights_files
  // The archives of values in data files, and of values put together from such.
  std::vector<std::unique_ptr<TorchArchive>> item_archives = {};
  std::set<std::filesystem::path> swap_paths = {};  // of all, also those that are not opened
  // The checkpoints that it is made of, if it is not from files alone.
  std::shared_ptr<const Checkpoint> run = {};           // Checkpoint::run
  std::shared_ptr<const Checkpoint> values = {};        // whose states and steps these are
  std::shared_ptr<const Checkpoint> changed_from = {};  // Checkpoint::changed_from
  // Checkpoint::world() of a changed_set() of a split model.
  std::function<Checkpoint(uint32_t mp_rank)> changed_world = {};
  std::vector<AveragedCheckpoint> averaged = {};  // Checkpoint::averaged
};

// A row of the table of layouts.
struct Layout {
  std::string_view name;
  // True if this reader is the one for the folder. Looks at file names and, if it must, at one
  // shard.
  bool (*probe)(CheckpointDraft& draft);
  // Reads all metadata: fills params, facts, groups if there are any, and the shards that these
  // borrow. Throws as Checkpoint::open.
  void (*read)(CheckpointDraft& draft);
  // True if `read` chooses one of several models by OpenOptions::model.
  bool has_models = false;
};

// One reader a file.
extern const Layout kDcp;
extern const Layout kRankFiles;
extern const Layout kTorchDist;
extern const Layout kTraining;
extern const Layout kZero0;
extern const Layout kZero12;
extern const Layout kZero3;
extern const Layout kUniversal;

}  // namespace dsckpt
