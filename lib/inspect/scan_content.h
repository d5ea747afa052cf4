// One file, or record of one, scanned: finds the pickles in whatever it is. For scan.cpp only.
#pragma once

#include "inspect/scan.h"
#include "io/input_file.h"

namespace dsckpt {

// Adds what is in `file` to `result`, which is that of this file alone. Throws IoError.
void scan_content(const InputFile& file, ScanResult& result);

}  // namespace dsckpt
