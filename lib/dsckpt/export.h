// What the shared library exports; everything else in it is hidden.
#pragma once

#define DSCKPT_EXPORT __attribute__((visibility("default")))
