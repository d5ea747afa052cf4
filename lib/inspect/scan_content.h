// Scans one file, or a record of one: finds the pickles in content of any form. For scan_path.cpp
// only.
#pragma once

#include <vector>

#include "inspect/dcp_items.h"
#include "inspect/scan.h"
#include "io/input_file.h"

namespace dsckpt {

// Adds the findings in `file` to `result`, which is that of this file alone. `items` are those of a
// `.metadata`, which are passed to torch.load one by one. Throws IoError.
void scan_content(const InputFile& file, const std::vector<DcpItem>& items, ScanResult& result);

}  // namespace dsckpt
