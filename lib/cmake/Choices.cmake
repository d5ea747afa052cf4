# Parts that are built where what they need is there.

# dsckpt_choice(OPTION TEXT): an option that is ON, OFF, or AUTO, its default.
function(dsckpt_choice option text)
  set(${option} AUTO CACHE STRING "${text}: ON, OFF, or AUTO, where that is there")
  set_property(CACHE ${option} PROPERTY STRINGS AUTO ON OFF)
  string(TOUPPER "${${option}}" value)
  if(NOT value MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|YES|NO|Y|N|1|0)$")
    message(FATAL_ERROR "${option} is ON, OFF or AUTO, not '${${option}}'")
  endif()
endfunction()

# dsckpt_decide(OPTION RESULT [LACK...]): sets RESULT to ON or OFF, and says which and why. LACK: what is missing.
function(dsckpt_decide option result)
  list(JOIN ARGN ", and " lacks)
  string(TOUPPER "${${option}}" value)
  set(is_on OFF)
  if(NOT value STREQUAL "AUTO" AND NOT value)
    message(STATUS "${option}: OFF, as was asked for")
  elseif(lacks STREQUAL "")
    set(is_on ON)
    message(STATUS "${option}: ON")
  elseif(value STREQUAL "AUTO")
    message(STATUS "${option}: OFF, since ${lacks}")
  else()
    message(FATAL_ERROR "${option} is ON, but ${lacks}")
  endif()
  set(${result} ${is_on} PARENT_SCOPE)
endfunction()
