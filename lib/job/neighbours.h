// The files beside the shards: what frameworks keep with a checkpoint, such as the Hugging Face
// Trainer's state and configuration, and each rank's random numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/find/folders.h"
#include "dsckpt/checkpoint.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// DeepSpeed's script beside the shards (engine.py _copy_recovery_script), which reads them alone.
inline constexpr std::string_view kConverterScript = "zero_to_fp32.py";

// The prefix of files that ckpt-pack keep puts beside checkpoints, to know them again. They are not
// part of checkpoints.
inline constexpr std::string_view kKeepPrefix = ".dsckpt-keep";

// A file to copy byte for byte.
struct Neighbour {
  std::filesystem::path source;
  std::string destination;  // relative to the output folder

  bool operator==(const Neighbour&) const = default;
};

struct Neighbours {
  std::vector<Neighbour> files;    // by destination
  std::vector<std::string> notes;  // what is left out or missing, for the user
};

// Where a checkpoint lies.
struct CheckpointPlace {
  std::filesystem::path named;       // the folder the user gave: it holds the tag, or is it
  std::filesystem::path tag_folder;  // the folder of the shards
  std::string tag;                   // its path in the output folder
  // Tag folders of other roots. Their files count if no folder before has them. So do files of the
  // folders above, unless the user named the tag folder itself.
  std::vector<std::filesystem::path> other_roots = {};
  // Copy what links lead to that is in none of these folders.
  bool follow_links = false;
  // The folders that were listed before; nullptr for none.
  std::shared_ptr<Folders> folders = {};
};

// The files that belong beside the shards of the same run on another number of data-parallel ranks.
//
// From the tag folder: files that are not shards, as TAG/NAME. Also from the named folder, unless
// the user named the tag folder itself. All its files but `latest` and `latest_universal` keep
// their names. All its folders come with everything in them, but for those that hold shards (other
// tags; with a note if they lie deeper). `zero` (universal), unfinished outputs (.dsckpt-staging-*)
// and names that begin with kKeepPrefix do not come, either. Another framework's own files in the
// named folder do not count: chunks, files of ranks, weights and optimizers. Links to files in
// these folders are copied as files. Links out of them, links to folders, broken links, and entries
// that are neither file nor folder are left out, with a note. So are folders of the tag folder but
// offloaded_tensors, which is part of the shards. Empty folders are not made.
//
// Random numbers, in the named folder: ranks that both runs have keep theirs. rng_state_{r}.pth is
// the Hugging Face Trainer's (trainer.py _load_rng_state). A run on one rank calls it
// rng_state.pth, so its name changes. random_states_{r}.pkl is Accelerate's. Notes say which ranks
// start with fresh ones, as both frameworks let them, and whose are left out.
//
// Destinations are distinct, none is a shard's name in the tag folder, `latest` or
// `latest_universal`. A caller that writes another file beside the shards first takes the neighbour
// of that name out of `files`. CopyPlan::validate() refuses two outputs of one path.
//
// Throws IoError for a folder that cannot be listed.
Neighbours find_neighbours(const CheckpointPlace& place, uint32_t old_ranks, uint32_t new_ranks);
// The same of the run itself: random numbers are files like all others.
Neighbours find_neighbours(const CheckpointPlace& place);

// Where a source that is to be converted lies: of values that other values were given to, where
// those lie. `tag`: see CheckpointPlace.
CheckpointPlace place_in(const Source& source, const std::string& tag);

// True if it belongs to the program that trains: neither DeepSpeed's script, nor weights, nor
// beside the shards themselves, in the folder `tag`.
bool is_of_program(const Neighbour& file, const std::string& tag);

// Adds each as an output, copied byte for byte. Throws IoError for a file that cannot be opened.
void lay_out_neighbours(InputFiles& inputs, const std::vector<Neighbour>& files, PlanBuilder& plan);

}  // namespace dsckpt
