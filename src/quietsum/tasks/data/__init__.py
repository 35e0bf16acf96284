"""Data that travels with the package.

``heart_4centers.csv``: UCI Heart Disease (https://doi.org/10.24432/C52P4X, CC BY 4.0), collected by Andras Janosi
(Hungarian Institute of Cardiology, Budapest), William Steinbrunn (University Hospital, Zurich), Matthias Pfisterer
(University Hospital, Basel) and Robert Detrano (V.A. Medical Center, Long Beach, and Cleveland Clinic Foundation).
``heart_split.csv``: the rows that FLamby's rule holds out. README.md beside this file says more.
"""
