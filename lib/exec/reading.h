// Reading: the threads and processes for jobs that only read and examine files.
#pragma once

#include "dsckpt/run.h"

namespace dsckpt {

class JobInputs;
class PieceWork;
struct Reading;

// The processes that do a pass over files, beside this one or in its place.
class Readers {
 public:
  virtual ~Readers() = default;
  // The number of processes that read at once, at least.
  virtual int size() const { return 1; }
  // True if passes are only planned, for other processes (step_readers.h), and get no answers.
  virtual bool only_plan() const { return false; }
  // The files of their tasks.
  virtual JobInputs& inputs() = 0;
  // Gives the work its answers, in any order.
  virtual void read(PieceWork& work, const Reading& reading) = 0;
};

struct Reading {
  unsigned threads = 0;  // 0: default_threads()
  Progress& progress;
  Readers* readers = nullptr;  // nullptr: this process alone

  bool only_plans() const { return readers != nullptr && readers->only_plan(); }
};

}  // namespace dsckpt
