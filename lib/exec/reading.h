// Reading: who reads, of what is only read and looked at.
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
