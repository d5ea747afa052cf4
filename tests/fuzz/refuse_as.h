// What any input may do to a reader: be read, or be refused as what it is.
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
