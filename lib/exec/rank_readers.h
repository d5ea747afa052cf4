// RankReaders: all ranks of a meeting read. Rank 0 does its tasks as the other ranks do.
#pragma once

#include "exec/job_inputs.h"
#include "exec/meeting.h"
#include "exec/reading.h"

namespace dsckpt {

class RankReaders : public Readers {
 public:
  // `ranks` must outlive it.
  explicit RankReaders(Meeting& ranks) : ranks_(ranks) {}

  int size() const override { return ranks_.size(); }
  JobInputs& inputs() override { return inputs_; }
  void read(PieceWork& work, const Reading& reading) override;

 private:
  Meeting& ranks_;
  JobInputs inputs_;
};

}  // namespace dsckpt
