// Makes and checks manifests (manifest_file.h).
#pragma once

#include "inspect/verify/manifest_file.h"
#include "inspect/verify/verification.h"

namespace dsckpt {

// Hashes all files of the verified folder, or the one file; for checkpoints also files in
// subfolders.
Manifest make_manifest(Verification& v);
// Compares the files with the manifest of the options.
void check_manifest(Verification& v);

}  // namespace dsckpt
