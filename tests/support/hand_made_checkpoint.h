// A checkpoint made by hand, in a folder of its own, for tests of the readers.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/shard.h"
#include "support/hand_made.h"

namespace dsckpt::test {

using Floats = std::vector<float>;
using Names = std::vector<std::string>;

class HandMadeCheckpoint : public testing::Test {
 protected:
  // A file of torch.save, as HandMade::write() has it.
  void write(const std::string& name, const std::string& json) { made_.write(name, json); }

  // With optimizer states.
  Checkpoint open() { return open({.tag = {}, .optimizer_states = true}); }
  Checkpoint open(const OpenOptions& options) {
    return Checkpoint::open(inputs_, made_.folder(), options);
  }

  // All shards in the folder, by kind and rank.
  const std::vector<Shard>& shards() {
    const TagFolder folder = find_tag_folder(made_.folder());
    shards_ = open_shards(inputs_, folder.shards, folder.path.parent_path());
    return shards_;
  }

  Floats floats(const TensorSource& tensor) const { return floats_of(inputs_, tensor); }
  Floats weight(const Checkpoint& checkpoint, const char* name) const {
    return floats(checkpoint.find(name)->weight);
  }
  Floats state(const Checkpoint& checkpoint, const char* name, size_t number) const {
    return floats(checkpoint.find(name)->states.at(number).value);
  }

  static Names names_of(const Checkpoint& checkpoint) {
    Names names;
    for (const Param& param : checkpoint.params()) names.push_back(param.name);
    return names;
  }

  HandMade made_;
  InputFiles inputs_;

 private:
  std::vector<Shard> shards_;
};

}  // namespace dsckpt::test
