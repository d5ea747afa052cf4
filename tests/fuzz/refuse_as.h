// Any input may do one of two things to a reader: be read, or be refused with its own kind of
// error.
#pragma once

#include <cstdlib>

#include "dsckpt/error.h"

namespace dsckpt {

// Aborts for an error of another kind.
template <ErrorKind... kKinds, typename Read>
void refuse_as(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    if (((error.kind() != kKinds) && ...)) std::abort();
  }
}

}  // namespace dsckpt
