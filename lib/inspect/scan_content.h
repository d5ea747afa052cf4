// One file, or record of one, scanned: finds the pickles in whatever it is. For scan_path.cpp only.
#pragma once

#include <vector>

#include "inspect/dcp_items.h"
#include "inspect/scan.h"
#include "io/input_file.h"

namespace dsckpt {

// Adds what is in `file` to `result`, which is that of this file alone. `items`: what a `.metadata`
// says is there; torch.load is given each of them by itself. Throws IoError.
void scan_content(const InputFile& file, const std::vector<DcpItem>& items, ScanResult& result);

}  // namespace dsckpt
