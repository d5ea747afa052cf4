// The check of a manifest, and how one is made (manifest_file.h).
#pragma once

#include "inspect/verify/manifest_file.h"
#include "inspect/verify/verification.h"

namespace dsckpt {

// Hashes all files of the folder that is verified, or the one file: of checkpoints also those in
// folders below.
Manifest make_manifest(Verification& v);
// Compares the files with the manifest of the options.
void check_manifest(Verification& v);

}  // namespace dsckpt
