// Reading: the threads and ranks for jobs that only read and examine files.
#pragma once

#include "dsckpt/run.h"
#include "group/group.h"

namespace dsckpt {

struct Reading {
  unsigned threads = 0;  // 0: default_threads()
  Progress& progress;
  Group* group = nullptr;  // of which this is rank 0: all its ranks read
};

}  // namespace dsckpt
